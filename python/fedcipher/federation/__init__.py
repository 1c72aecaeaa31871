"""What a federation agrees on, without any framework: charter, chain of models, answers, policy, search for liars."""
