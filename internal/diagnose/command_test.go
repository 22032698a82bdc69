package diagnose

import "testing"

// A printed command goes into a shell: a namespace's name must not be more than one.
func TestInNamespace(t *testing.T) {
	for name, want := range map[string]string{
		"":              "",
		"gw":            "--netns gw ",
		"pid 77":        "--pid 77 ",
		"gw; reboot":    "",
		"gw$(reboot)":   "",
		"/run/netns/x":  "",
		"held by pid 9": "",
	} {
		if got := inNamespace(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}
