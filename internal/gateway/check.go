package gateway

// Check finds what a file cannot mean, would do to somebody, or cannot do on the host
// that facts tell of, in the order of the file. With the zero Facts the file is only
// checked by itself.
func Check(f *File, facts Facts) []Finding {
	return nil
}
