"""The administration API: keys, tenants, spending, approvals and stored runs."""
