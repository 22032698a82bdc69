package simulate

// Check says what of c makes no sense.
func (c *Config) Check() error { return nil }
