"""Other people's winners by learning, beside those of the proxy."""
