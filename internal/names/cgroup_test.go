package names

import (
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/snapshot"
)

const id64 = "3f2a9c1b2d4e5f60718293a4b5c6d7e8f90123456789abcdef0123456789abcd"

// TestByCgroup has the names that programs give to the control groups of what they keep.
func TestByCgroup(t *testing.T) {
	const uid = "8a2c5d1e-0b7f-4c3a-9d2e-6f1a2b3c4d5e"
	slice := "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice/"
	for text, want := range map[string]snapshot.Owner{
		"0::/system.slice/docker-" + id64 + ".scope\n":                             {Runtime: "docker", Container: id64},
		"12:pids:/docker/" + id64 + "\n11:memory:/docker/" + id64 + "\n":           {Runtime: "docker", Container: id64},
		"0::/docker/" + id64 + "/system.slice/nginx.service\n":                     {Runtime: "docker", Container: id64, Unit: "nginx.service"},
		"0::/machine.slice/libpod-" + id64 + ".scope/container\n":                  {Runtime: "podman", Container: id64},
		"0::" + slice + "cri-containerd-" + id64 + ".scope\n":                      {Runtime: "containerd", Container: id64, Pod: uid},
		"0::" + slice + "crio-" + id64 + ".scope\n":                                {Runtime: "cri-o", Container: id64, Pod: uid},
		"1:name=systemd:/kubepods/besteffort/pod" + uid + "/" + id64 + "\n":        {Runtime: "kubernetes", Container: id64, Pod: uid},
		"0::/lxc.payload.web/init.scope\n":                                         {Runtime: "lxc", Container: "web"},
		"0::/lxc/web\n":                                                            {Runtime: "lxc", Container: "web"},
		"0::/lxc.monitor.web\n":                                                    {},
		"0::/machine.slice/systemd-nspawn@deb\\x2d12.service/payload\n":            {Runtime: "nspawn", Container: "deb-12", Unit: "systemd-nspawn@deb-12.service"},
		"0::/system.slice/system-openvpn.slice/openvpn@lan.service\n":              {Unit: "openvpn@lan.service"},
		"0::/user.slice/user-1000.slice/user@1000.service/app.slice/vpn.service\n": {Unit: "vpn.service"},
		"0::/user.slice/user-0.slice/session-3.scope\n":                            {},
		"0::/system.slice/docker.service\n":                                        {Unit: "docker.service"},
		"0::/\n":                                                                   {}, "": {},
	} {
		var got snapshot.Owner
		if ByCgroup(&got, text); got != want {
			t.Errorf("%q:\n%+v, want\n%+v", text, got, want)
		}
	}
}

// TestOwnerTexts: what people know a namespace by comes first.
func TestOwnerTexts(t *testing.T) {
	for want, o := range map[string]snapshot.Owner{
		"pod default/web":                                     {Pod: "default/web", Container: id64, Runtime: "containerd", Netns: "cni-1", PID: 7},
		"container web (docker 3f2a9c1b2d4e)":                 {Container: id64, ContainerName: "web", Runtime: "docker", PID: 7},
		"podman container 3f2a9c1b2d4e":                       {Container: id64, Runtime: "podman", PID: 7},
		"lxc container web":                                   {Container: "web", Runtime: "lxc", PID: 7},
		"network namespace blue (unit a.service)":             {Netns: "blue", Unit: "a.service", PID: 7},
		"network namespace blue (sleep, pid 7)":               {Netns: "blue", Process: "sleep", PID: 7},
		"network namespace blue":                              {Netns: "blue"},
		"unit a.service (sleep, pid 7)":                       {Unit: "a.service", Process: "sleep", PID: 7},
		"process sleep (pid 7)":                               {Process: "sleep", PID: 7},
		"network namespace at /run/docker/netns/x":            {Path: "/run/docker/netns/x"},
		"network namespace held by a process (router, pid 7)": {Process: "router", PID: 7, Held: true, Path: "/proc/7/fd/3"},
	} {
		if got := o.String(); got != want {
			t.Errorf("%+v is %q, want %q", o, got, want)
		}
	}
}
