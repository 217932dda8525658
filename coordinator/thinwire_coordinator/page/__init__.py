"""The coordinator's page, and the JSON behind it: read-only, for anybody who can reach the HTTP port."""
