"""Small networks with random weights, for the model featurizers to run: named by "tests_networks.two_towers:load"."""
