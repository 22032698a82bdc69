package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// vmPath is where programs lie, on the host and in the VM.
const vmPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// programs are taken from the host with their libraries. scripts/setup installs
// those that a plain system has not.
var programs = strings.Fields(`
	nginx nft iptables ip6tables iptables-save iptables-restore iptables-nft ip6tables-nft iptables-legacy ip6tables-legacy iptables-nft-restore iptables-legacy-restore ip6tables-nft-restore ip6tables-legacy-restore
	conntrack ip tc ss bridge ab strace pgrep ps nsenter ipvsadm ping tcpdump tmux stty
	bash sh env cat ls cp mv rm mkdir mkfifo rmdir mktemp ln touch chmod chown head tail wc sort uniq cut tr tee seq dd date stat readlink
	find grep sed awk tar gzip sleep timeout true false test echo printf id uname mount umount sysctl dmesg kill setpriv unshare
	df sha256sum od diff`)

// optionalPrograms may be missing on the host: nothing that is run by default
// needs them.
var optionalPrograms = map[string]bool{"diff": true, "tc": true, "bridge": true, "ss": true}

// programFiles are what programs read at run time; those that the host has.
var programFiles = []string{
	"/etc/ld.so.cache", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/protocols", "/etc/services", "/etc/ethertypes",
	"/etc/nginx/mime.types", "/usr/share/iproute2", "/etc/iproute2",
	"/usr/lib/locale/C.utf8", // tmux
	"/usr/lib/x86_64-linux-gnu/xtables", "/usr/lib64/xtables", "/usr/lib/xtables", "/usr/share/nginx/modules-available",
}

// addPrograms adds them all, or returns an error naming those the host lacks.
func (a archive) addPrograms() error {
	var files, missing []string
	for _, name := range programs {
		file, err := lookPath(name)
		switch {
		case err == nil:
			files = append(files, file)
		case !optionalPrograms[name]:
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("the VM needs programs that are not installed here: %s ('scripts/setup vm' as root installs them)", strings.Join(missing, " "))
	}
	for _, name := range programFiles {
		if err := a.addAny(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	for name, e := range a { // plugins
		if e.from != "" && strings.HasSuffix(name, ".so") {
			files = append(files, name)
		}
	}
	libraries, err := librariesOf(files)
	if err != nil {
		return err
	}
	for _, f := range append(files, libraries...) {
		if err := a.addHost(f); err != nil {
			return err
		}
	}
	return nil
}

// addAny adds a file, or all below a directory.
func (a archive) addAny(name string) error {
	info, err := os.Stat(name)
	if err == nil && info.IsDir() {
		return a.addTree(name, nil)
	}
	if err == nil {
		err = a.addHost(name)
	}
	return err
}

// lookPath searches the VM's PATH, not the caller's, so that the program is found
// there under the same name.
func lookPath(name string) (string, error) {
	for _, dir := range filepath.SplitList(vmPath) {
		file := filepath.Join(dir, name)
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", fmt.Errorf("find %s: %w in %s", name, exec.ErrNotFound, vmPath)
}

// Lines of ldd(1): "libc.so.6 => /lib/… (0x…)" and "/lib64/ld-linux-… (0x…)".
var (
	libraryLine = regexp.MustCompile(`(?m)^\s+(?:\S+ => )?(/\S+) \(0x[0-9a-f]+\)$`)
	missingLine = regexp.MustCompile(`(?m)^\s+(\S+) => not found`)
)

// librariesOf asks ldd(1), which asks the dynamic loader.
func librariesOf(files []string) ([]string, error) {
	// It fails if one of the files is a script or static, but still lists the others.
	text, err := exec.Command("ldd", files...).Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return nil, fmt.Errorf("find the libraries of programs for the VM: %w", err)
	}
	if m := missingLine.FindSubmatch(text); m != nil {
		return nil, fmt.Errorf("find the libraries of programs for the VM: %s is not installed here", m[1])
	}
	var found []string
	for _, m := range libraryLine.FindAllSubmatch(text, -1) {
		found = append(found, string(m[1]))
	}
	return found, nil
}
