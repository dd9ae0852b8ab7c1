"""World models: recurrent models of an environment in a latent space, learned from sequences and unrolled without it."""
