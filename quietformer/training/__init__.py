"""What a recipe says about training, made into models, batches and runs."""
