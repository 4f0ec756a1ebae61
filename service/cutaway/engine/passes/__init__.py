"""What a pass needs and records: targets, baselines, features, completeness sums, and the pass recorder."""
