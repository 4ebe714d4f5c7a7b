"""The payment provider (Stripe's formats)."""
