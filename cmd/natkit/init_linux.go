package main

import "github.com/natkit/natkit/internal/lab/build"

// runInit is process 1 of a lab's node, where natkit was started as that.
func runInit() (code int, done bool) {
	if !build.IsInit() {
		return 0, false
	}
	return build.InitMain(), true
}
