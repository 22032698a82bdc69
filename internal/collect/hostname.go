package collect

import (
	"bufio"
	"io"
	"os"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
)

// osReleases are where the distribution of the host is named (os-release(5)), the first one that can be read counts: in a
// container that sees the host's processes, its process 1 has the host's.
var osReleases = []string{"/proc/1/root/etc/os-release", "/proc/1/root/usr/lib/os-release", "/etc/os-release", "/usr/lib/os-release"}

// ReadHost returns the name and the distribution of this host, as far as they are known.
func ReadHost() snapshot.Host {
	var h snapshot.Host
	if name, err := os.Hostname(); err == nil && name != "(none)" {
		h.Name = name
	}
	for _, path := range osReleases {
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		h.Distribution = parseOSRelease(f)
		f.Close()
		if h.Distribution != "" {
			break
		}
	}
	return h
}

// mostOSRelease bounds what is read of the file.
const mostOSRelease = 64 << 10

// parseOSRelease returns ID and VERSION_ID: "debian 12".
func parseOSRelease(r io.Reader) string {
	values := map[string]string{}
	for lines := bufio.NewScanner(io.LimitReader(r, mostOSRelease)); lines.Scan(); {
		if name, value, ok := strings.Cut(strings.TrimSpace(lines.Text()), "="); ok {
			values[name] = strings.Trim(value, `"'`)
		}
	}
	if values["ID"] == "" {
		return ""
	}
	return strings.TrimSpace(values["ID"] + " " + values["VERSION_ID"])
}
