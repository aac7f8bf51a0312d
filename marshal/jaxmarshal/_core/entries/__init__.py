"""What programs call, a module each: what is refused, what is tried, and what is learned."""
