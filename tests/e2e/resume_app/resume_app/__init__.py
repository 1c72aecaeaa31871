"""Clients that walk to goals of their own, on a server that is killed again and again."""
