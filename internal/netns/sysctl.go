package netns

import (
	"os"
	"strings"
)

// Sysctl reads a sysctl of a namespace (nil: the calling thread's) by its dotted name. One
// of the whole machine has the same value in each.
func Sysctl(ns *Handle, name string) (value string, err error) {
	err = ns.Do(func() error {
		text, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
		value = strings.TrimSpace(string(text))
		return err
	})
	return value, err
}
