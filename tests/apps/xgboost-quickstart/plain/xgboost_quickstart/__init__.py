"""A Flower app on XGBoost."""
