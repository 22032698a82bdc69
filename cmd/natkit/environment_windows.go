package main

import (
	"os"

	"golang.org/x/sys/windows"
)

// environment has TERM=dumb where a console takes no escape sequences: before Windows 10, or its legacy console
// (SetConsoleMode, ENABLE_VIRTUAL_TERMINAL_PROCESSING). They are turned on here; the terminals of Unix always take them.
func environment(outputs ...*os.File) func(string) string {
	for _, file := range outputs {
		console := windows.Handle(file.Fd())
		var mode uint32
		if windows.GetConsoleMode(console, &mode) != nil {
			continue // no console
		}
		if windows.SetConsoleMode(console, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) != nil {
			return dumb
		}
	}
	return os.Getenv
}

func dumb(name string) string {
	if name == "TERM" {
		return "dumb"
	}
	return os.Getenv(name)
}
