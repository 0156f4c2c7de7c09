"""Where the models of each family keep what is converted, watched and quantized."""
