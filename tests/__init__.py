"""Tests of all packages. A regular package, because pgx installs one named `tests` that would hide a namespace."""
