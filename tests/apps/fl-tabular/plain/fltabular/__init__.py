"""A Flower app on tables of patients."""
