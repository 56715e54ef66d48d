"""Handwritten digits learned by nodes that never show each other their images."""
