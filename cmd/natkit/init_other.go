//go:build !linux

package main

// runInit does nothing: labs require Linux.
func runInit() (code int, done bool) { return 0, false }
