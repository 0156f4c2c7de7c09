"""Load on a server that speaks KServe v2: what it takes, how long requests wait, what fails."""
