//go:build linux

package testutil

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// configOf reads the configuration that the running kernel was built with: from the
// kernel (CONFIG_IKCONFIG_PROC), or where distributions put it.
func configOf(release string) (map[string]string, error) {
	var tried error
	for _, path := range []string{"/proc/config.gz", "/boot/config-" + release, "/lib/modules/" + release + "/config"} {
		config, err := readConfig(path)
		if err == nil {
			return config, nil
		}
		tried = errors.Join(tried, err)
	}
	return nil, fmt.Errorf("read the kernel's configuration: %s", strings.ReplaceAll(tried.Error(), "\n", "; "))
}

func readConfig(path string) (map[string]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if !strings.HasSuffix(path, ".gz") {
		return parseConfig(f)
	}
	text, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return parseConfig(text)
}

// parseConfig reads lines "CONFIG_X=y"; those that are not set are comments.
func parseConfig(r io.Reader) (map[string]string, error) {
	config := map[string]string{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if symbol, value, ok := strings.Cut(lines.Text(), "="); ok && strings.HasPrefix(symbol, "CONFIG_") {
			config[symbol] = value
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(config) == 0 {
		return nil, errors.New("no options in it")
	}
	return config, nil
}
