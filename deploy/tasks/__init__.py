"""Tasks that judge a model by what it maps feeds to: sentence similarity, fidelity to the float model, perplexity."""
