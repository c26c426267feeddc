"""The sink for tables of MySQL and MariaDB."""
