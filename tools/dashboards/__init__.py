"""The sources of ``aiohttp_hardened/dashboards``: ``python -m tools.dashboards`` writes it anew."""
