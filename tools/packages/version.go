package main

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Source is what is packaged: the words of scripts/version, and the time of the commit.
type Source struct {
	// Words are what the linker puts into natkit.
	Words string
	// Version is a package's: digits first, in an order that dpkg and rpm agree on, without a hyphen.
	Version string
	Commit  string
	Time    time.Time
}

var (
	tagged = regexp.MustCompile(`^v(\d+\.\d+\.\d+)(?:-([0-9A-Za-z.]+?))?(?:-(\d+)-(g[0-9a-f]+))?$`)
	hashed = regexp.MustCompile(`^[0-9a-f]{7,64}$`)
)

// sourceOf understands the words of scripts/version, "v1.2.0-3-g0123abc COMMIT DATE".
func sourceOf(words string, at time.Time) (Source, error) {
	s := Source{Words: strings.TrimSpace(words), Time: at.UTC()}
	fields := strings.Fields(words)
	if len(fields) == 0 {
		return s, fmt.Errorf("no version: scripts/version prints one")
	}
	if len(fields) > 1 {
		s.Commit = fields[len(fields)-2]
	}
	var err error
	s.Version, err = packageVersion(fields[0], s.Time)
	return s, err
}

// packageVersion is the version of a package for what 'git describe' prints. Commits after a tag come after it (+), what
// comes before a release does so here too (~), and without any tag versions are ordered by the time of their commits.
func packageVersion(described string, at time.Time) (string, error) {
	name, dirty := strings.CutSuffix(described, "-dirty")
	base, after, err := versionParts(name, at)
	if err != nil {
		return "", err
	}
	if dirty {
		after = append(after, "dirty")
	}
	if len(after) > 0 {
		base += "+" + strings.Join(after, ".")
	}
	return base, nil
}

// versionParts returns the version of a release, or of a commit without a tag, and what came after it.
func versionParts(name string, at time.Time) (base string, after []string, err error) {
	if hashed.MatchString(name) {
		return "0.0.0~git" + at.UTC().Format("20060102150405") + "." + name[:7], nil, nil
	}
	m := tagged.FindStringSubmatch(name)
	if m == nil {
		return "", nil, fmt.Errorf("version %q: expected v1.2.3, v1.2.3-rc.1, v1.2.3-4-g0123abc or a commit, with or without -dirty", name)
	}
	base = m[1]
	if m[2] != "" {
		base += "~" + m[2]
	}
	if m[3] != "" {
		after = []string{m[3], m[4]}
	}
	return base, after, nil
}

// tag is the version as a tag of images, which have no ~ and no +.
func (s Source) tag() string { return strings.NewReplacer("~", "-", "+", "-").Replace(s.Version) }
