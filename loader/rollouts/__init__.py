"""Rollouts as samples: token sequences with the policy's log-probabilities, rewards and turns."""
