"""Code that the four runs share: the swarm with its kills, the figures, and the page that shows them."""
