"""What a graph reads: texts or images, for calibration, benchmarks and tasks."""
