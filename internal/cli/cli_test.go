package cli

import (
	"runtime/debug"
	"testing"
)

func TestBuildOf(t *testing.T) {
	const commit, date = "9144652fce163e723830792042363b257f5dd191", "2026-11-22T21:11:22Z"
	module := func(version string, settings ...debug.BuildSetting) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Version: version}, Settings: settings}
	}
	checkout := []debug.BuildSetting{{Key: "vcs.revision", Value: commit}, {Key: "vcs.time", Value: date}, {Key: "vcs.modified", Value: "true"}}
	for _, tt := range []struct {
		name, linked, archived string
		info                   *debug.BuildInfo
		want                   Build
	}{
		{"nothing", "", "$Format:%H$", nil, Build{Version: "unknown"}},
		{"make, of a tag", "v1.2.0 " + commit + " " + date, "$Format:%H$", module("(devel)"),
			Build{Version: "v1.2.0", Tag: "v1.2.0", Commit: commit, Date: date}},
		{"make, after a tag, changed", "v1.2.0-rc.1-3-g9144652-dirty " + commit + " " + date, "", module("(devel)"),
			Build{Version: "v1.2.0-rc.1-3-g9144652-dirty", Tag: "v1.2.0-rc.1", Commit: commit, Date: date, Modified: true}},
		{"make, without tags", "9144652-dirty " + commit + " " + date, "", nil,
			Build{Version: "9144652-dirty", Commit: commit, Date: date, Modified: true}},
		{"make, without anything", "unknown", "", nil, Build{Version: "unknown", Tag: ""}},
		{"go build of an archive", "", "v1.2.0 " + commit + " " + date + "\n", module("(devel)"),
			Build{Version: "v1.2.0", Tag: "v1.2.0", Commit: commit, Date: date}},
		{"go build of an archive without a tag", "", " " + commit + " " + date + "\n", module("(devel)"),
			Build{Version: commit[:12], Commit: commit, Date: date}},
		{"go build of a checkout", "", "$Format:%H$", module("(devel)", checkout...),
			Build{Version: commit[:12], Commit: commit, Date: date, Modified: true}},
		{"go install of a tag", "", "$Format:%H$", module("v1.2.0"), Build{Version: "v1.2.0", Tag: "v1.2.0"}},
		{"go install of a commit", "", "", module("v1.2.1-0.20261122211122-9144652fce16"),
			Build{Version: "v1.2.1-0.20261122211122-9144652fce16", Commit: "9144652fce16", Date: date}},
		{"go build of a changed checkout", "", "", module("v0.0.0-20261122211122-9144652fce16+dirty", checkout...),
			Build{Version: "v0.0.0-20261122211122-9144652fce16+dirty", Commit: commit, Date: date, Modified: true}},
	} {
		if got := BuildOf(tt.linked, tt.archived, tt.info); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}
