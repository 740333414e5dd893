"""What every long job shares: files that are whole or absent, progress, stopping."""
