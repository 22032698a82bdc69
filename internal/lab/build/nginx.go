package build

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

var errNoNginx = errors.New("nginx is not installed (searched PATH, /usr/sbin and /usr/local/nginx/sbin); --server builtin does without")

// nginx is an installed nginx and what it can do.
type nginx struct {
	path string
	// version is "nginx/1.22.1".
	version string
	// build is the text of nginx -V: the options it was configured with.
	build string
}

func findNginx(ctx context.Context) (nginx, error) {
	for _, name := range []string{"nginx", "/usr/sbin/nginx", "/usr/local/sbin/nginx", "/usr/local/nginx/sbin/nginx"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		text, err := exec.CommandContext(ctx, path, "-V").CombinedOutput()
		if err != nil {
			return nginx{}, fmt.Errorf("%s -V: %w: %s", path, err, strings.TrimSpace(string(text)))
		}
		return parseNginx(path, string(text)), nil
	}
	return nginx{}, errNoNginx
}

var nginxVersion = regexp.MustCompile(`nginx/\d+\.\d+\.\d+`)

func parseNginx(path, build string) nginx {
	version := nginxVersion.FindString(build)
	if version == "" {
		version = "nginx"
	}
	return nginx{path: path, version: version, build: build}
}

// atLeast compares versions; an unknown one counts as new.
func (n nginx) atLeast(major, minor, patch int) bool {
	var a, b, c int
	if _, err := fmt.Sscanf(n.version, "nginx/%d.%d.%d", &a, &b, &c); err != nil {
		return true
	}
	return slices.Compare([]int{a, b, c}, []int{major, minor, patch}) >= 0
}

// command starts nginx with everything it writes below dir. Before it reads its
// configuration it opens the error log that it was built with, a file of the
// host; -e (nginx 1.19.5) keeps it from that.
func (n nginx) command(dir string) Command {
	args := []string{"-p", dir, "-c", filepath.Join(dir, "nginx.conf")}
	if n.atLeast(1, 19, 5) {
		args = append(args, "-e", "stderr")
	}
	return Command{Path: n.path, Args: args}
}

func (n nginx) writeFiles(box *sandbox, listen listening) error {
	err := writeAll(map[string]string{
		box.file("nginx.conf"): n.config(box.mount, listen, fileLimit(), workerUser(box.mount)),
		box.file("index.html"): page,
	})
	if err != nil {
		return fmt.Errorf("write nginx's configuration: %w", err)
	}
	return nil
}

// workerUser returns the user and group that nginx's workers run as: uid 65534, whose
// group's name differs between distributions, or root if a parent directory of dir is
// closed to other users.
func workerUser(dir string) string {
	u, err := user.Lookup("nobody")
	if err != nil || !openToAll(dir) {
		return "root"
	}
	g, err := user.LookupGroupId(u.Gid)
	if err != nil {
		return "root"
	}
	return u.Username + " " + g.Name
}

func openToAll(dir string) bool {
	for ; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil || info.Mode()&0o001 == 0 {
			return false
		}
		if dir == filepath.Dir(dir) {
			return true
		}
	}
}

const (
	// wantConnections per worker is more than any load of a lab opens at once.
	wantConnections = 32768
	// spareFiles are a worker's own: log, listener, epoll, page.
	spareFiles = 64
)

// listening is where a web server listens, and whether it leaves connections open
// where a client asks for it.
type listening struct {
	at   []netip.AddrPort
	keep bool
}

// keptSeconds is how long nginx leaves a connection open on which nothing comes.
const keptSeconds = 75

// config is a web server as plain as the one in the case that scenario
// table-full reproduces: one small page, each connection closed after it. All
// paths that nginx would else take below /var are set; it would even change the
// owner of directories there.
func (n nginx) config(dir string, listen listening, files uint64, user string) string {
	files = min(files, wantConnections+spareFiles)
	connections := max(files, 2*spareFiles) - spareFiles
	var paths, addresses strings.Builder
	for _, module := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		if !strings.Contains(n.build, "--without-http_"+module+"_module") {
			fmt.Fprintf(&paths, "  %s_temp_path %s/%[1]s;\n", module, dir)
		}
	}
	for _, addr := range listen.at {
		fmt.Fprintf(&addresses, "    listen %s backlog=65535;\n", addr)
	}
	keep := "  keepalive_timeout 0;"
	if listen.keep {
		keep = fmt.Sprintf("  keepalive_timeout %d;\n  keepalive_requests 1000000;", keptSeconds)
	}
	return fmt.Sprintf(`daemon off;
user %s;
worker_processes auto;
worker_rlimit_nofile %d;
pid %[3]s/nginx.pid;
lock_file %[3]s/nginx.lock;
error_log stderr crit;
events { worker_connections %[4]d; }
http {
%[5]s  access_log off;
  default_type text/html;
  sendfile on;
%[6]s
  server {
%[7]s    root %[3]s;
    location = / { try_files /index.html =404; }
    location / { return 404; }
  }
}
`, user, files, dir, connections, &paths, keep, &addresses)
}

// page has the size of nginx's own welcome page, 612 bytes.
var page = welcome + strings.Repeat(" ", pageBytes-len(welcome)-1) + "\n"

const (
	pageBytes = 612
	welcome   = `<!DOCTYPE html>
<html>
<head><title>Welcome to the lab</title></head>
<body>
<h1>Welcome to the lab</h1>
<p>This page comes from the web server of a natkit lab: real nginx, in a
network namespace of its own.</p>
<p><em>Thank you for using nginx.</em></p>
</body>
</html>
`
)
