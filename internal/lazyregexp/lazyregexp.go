// Package lazyregexp has regular expressions that are compiled when they are first used: natkit has some hundred, and a
// run needs few of them.
package lazyregexp

import (
	"regexp"
	"sync"
)

// Regexp is a regular expression of this kind. Its methods are those of regexp.Regexp.
type Regexp struct {
	pattern string
	compile func() *regexp.Regexp
}

// New returns one of a pattern. A pattern that is none panics at its first use.
func New(pattern string) *Regexp {
	return &Regexp{pattern, sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })}
}

func (r *Regexp) String() string                       { return r.pattern }
func (r *Regexp) Match(b []byte) bool                  { return r.compile().Match(b) }
func (r *Regexp) MatchString(s string) bool            { return r.compile().MatchString(s) }
func (r *Regexp) FindString(s string) string           { return r.compile().FindString(s) }
func (r *Regexp) FindStringSubmatch(s string) []string { return r.compile().FindStringSubmatch(s) }
func (r *Regexp) FindStringSubmatchIndex(s string) []int {
	return r.compile().FindStringSubmatchIndex(s)
}
func (r *Regexp) FindSubmatch(b []byte) [][]byte { return r.compile().FindSubmatch(b) }
func (r *Regexp) ReplaceAllString(s, with string) string {
	return r.compile().ReplaceAllString(s, with)
}
