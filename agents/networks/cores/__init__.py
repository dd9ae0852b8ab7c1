"""Recurrent cores: LSTM, GRU, GTrXL."""
