"""How close to AdamW low bandwidth gets: arms side by side on the same model, text, order and number of tokens."""
