"""Memory of networks: LSTM, GRU, GTrXL."""
