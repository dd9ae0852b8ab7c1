"""Experiments of jaxsrl: values, each in a file that is also a program with command-line flags."""
