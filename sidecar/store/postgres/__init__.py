"""The chain store on PostgreSQL: the same statements, another engine."""
