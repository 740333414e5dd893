"""What tests share: tiny models and files, stand-ins for services, and slow reference implementations."""
