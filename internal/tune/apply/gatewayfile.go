package apply

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/gateway/store"
	"github.com/natkit/natkit/internal/tune"
)

// gatewayFile applies the configuration that the gateway has after a boot. The store
// has the texts.
type gatewayFile struct {
	root  string
	store *store.Store
}

func (g gatewayFile) path() string { return filepath.Join(g.root, tune.ConfPath(tune.GatewayFile)) }

// GatewayFileText is the configuration that the gateway has after a boot.
func GatewayFileText(opt Options) ([]byte, error) {
	opt = opt.withDefaults()
	text, err := os.ReadFile(gatewayFile{root: opt.Root}.path())
	if err != nil {
		return nil, fmt.Errorf("read gateway configuration: %w", err)
	}
	return text, nil
}

func (g gatewayFile) Read(string) (string, error) {
	text, err := os.ReadFile(g.path())
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read gateway configuration: %w", err)
	}
	return store.TextDigest(text), nil
}

func (g gatewayFile) Writable(string) error { return mayReplace(g.path()) }

func (g gatewayFile) Write(_, value string) error {
	if err := regular(g.path()); err != nil {
		return err
	}
	if value == "" {
		if err := os.Remove(g.path()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove gateway configuration: %w", err)
		}
		return disk.SyncDir(filepath.Dir(g.path()))
	}
	text, err := g.store.Text(value)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(g.path()), 0o755); err != nil {
		return fmt.Errorf("persist: %w", err)
	}
	if err := disk.Replace(g.path(), 0o644, disk.Text(text)); err != nil {
		return fmt.Errorf("persist: %w", err)
	}
	return nil
}

func (g gatewayFile) Honours(_, asked, got string) bool { return asked == got }

func (g gatewayFile) Durable() bool { return true }
