package iptables

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// harmless are commands of scripts that are no rules and lose nothing.
var harmless = []string{"sysctl", "modprobe", "set", "exit", "echo", "true", ":"}

// interfaceHook is a line of a file that has commands for when an interface comes or goes: of
// wg-quick, and of /etc/network/interfaces.
var interfaceHook = regexp.MustCompile(`^(?:(PostUp|PreUp|PostDown|PreDown)\s*=|(post-up|pre-up|up|post-down|pre-down|down)\s)\s*(.*)`)

// typed is a line as people write it: a command, or several.
func (p *parser) typed(line string) {
	if m := interfaceHook.FindStringSubmatch(line); m != nil {
		if strings.HasSuffix(strings.ToLower(m[1]+m[2]), "down") {
			return // it takes back what another line does
		}
		line = m[3]
	}
	all := commands(line)
	if slices.ContainsFunc(all, func(c string) bool { return !readable(c) }) {
		all = []string{line}
	}
	for _, c := range all {
		p.alone(c)
	}
}

// commands are those of a line, between semicolons and "and".
func commands(line string) (all []string) {
	begin, quote := 0, byte(0)
	for i := 0; i < len(line); i++ {
		c, size := line[i], 0
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
		case c == '"' || c == '\'':
			quote = c
		case c == ';':
			size = 1
		case strings.HasPrefix(line[i:], "&&"):
			size = 2
		}
		if size > 0 {
			all = append(all, strings.TrimSpace(line[begin:i]))
			begin, i = i+size, i+size-1
		}
	}
	if last := strings.TrimSpace(line[begin:]); last != "" {
		all = append(all, last)
	}
	return all
}

// readable reports whether it is a command that is read by itself or loses nothing.
func readable(command string) bool {
	words := strings.Fields(strings.TrimPrefix(strings.TrimPrefix(command, "$ "), "sudo "))
	return len(words) > 0 && (versionOf[program(words[0])] != 0 || slices.Contains(harmless, words[0]))
}

// program is its name: that of iptables-nft and /sbin/iptables is iptables.
func program(word string) string {
	name, _, _ := strings.Cut(path.Base(word), "-")
	return name
}

// alone is a command with a prompt or sudo before it.
func (p *parser) alone(line string) {
	words, err := tokens(strings.TrimPrefix(line, "$ "))
	if err != nil {
		p.foreign(line)
		return
	}
	if len(words) > 0 && words[0] == "sudo" {
		words = words[1:]
	}
	if i := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "#") }); i >= 0 {
		words = words[:i]
	}
	if len(words) == 0 {
		return
	}
	version := versionOf[program(words[0])]
	switch {
	case version != 0 && len(words) > 1 && strings.HasPrefix(words[1], "-"):
		p.shell(line, words[1:], version)
	case slices.Contains(harmless, words[0]) && !strings.Contains(line, "iptables"):
	default:
		p.foreign(line)
	}
}

// foreign is a line of something else: all of them are one note.
func (p *parser) foreign(line string) {
	if m := mentions.FindStringSubmatch(line); m != nil {
		p.unreadable(line, "natkit does not read shell scripts: import what iptables-save prints", versionOf[m[1]])
		return
	}
	const reason = "is not a rule of iptables"
	if p.others++; p.others == 1 {
		p.note(Untranslated, line, reason)
		p.other = len(p.set.Notes) - 1
		return
	}
	p.set.Notes[p.other].Reason = fmt.Sprintf("%s, nor are %d more lines", reason, p.others-1)
}

// shell is a command's options, as far as they mean the same without a shell.
func (p *parser) shell(line string, words []string, version int) {
	for _, w := range words {
		if strings.ContainsAny(w, "$`") {
			p.unreadable(line, "has a shell variable: import what iptables-save prints", version)
			return
		}
		if strings.ContainsAny(w, ";|&<>") {
			p.unreadable(line, "is more than one command: import what iptables-save prints", version)
			return
		}
	}
	table, rest := "filter", []string{}
	for i := 0; i < len(words); i++ {
		switch w := words[i]; {
		case (w == "-t" || w == "--table") && i+1 < len(words):
			i++
			table = words[i]
		case strings.HasPrefix(w, "--table="):
			table = strings.TrimPrefix(w, "--table=")
		case w == "-w" || w == "--wait":
			if i+1 < len(words) && isNumber(words[i+1]) {
				i++
			}
		case w == "-n" || w == "-v" || w == "--numeric" || w == "--verbose" || w == "-4" || w == "-6":
		default:
			rest = append(rest, w)
		}
	}
	p.command(line, rest, table, version)
}

var versionOf = map[string]int{"iptables": 4, "ip6tables": 6}

// mentions finds a command of iptables within a line of a script, inChain the chain
// that a command is about, inTable the table.
var (
	mentions = regexp.MustCompile(`\b(ip6?tables)(?:-nft|-legacy)? +-`)
	inChain  = regexp.MustCompile(`(?:^|\s)(-A|--append|-I|--insert|-D|--delete|-R|--replace) ?["']?([A-Za-z][A-Za-z0-9_-]*)`)
	inTable  = regexp.MustCompile(`(?:-t ?|--table[= ])([a-z]+)`)
)

// unreadable is a line of which nobody knows what it would match: whatever comes
// after it, or, where it does not just append, all of the chain, is in doubt.
func (p *parser) unreadable(line, reason string, version int) {
	p.note(Untranslated, line, reason)
	table := p.table
	if m := inTable.FindStringSubmatch(line); m != nil && p.table == "" {
		table = m[1]
	}
	if chainsOf[table] == nil {
		return
	}
	chains, first := chainsOf[table], true
	if m := inChain.FindStringSubmatch(line); m != nil {
		chains, first = []string{m[2]}, m[1] != "-A" && m[1] != "--append"
	}
	for _, name := range chains {
		p.doubt(p.tableNamed(table, version).chain(name), line, first)
	}
}

func (p *parser) doubt(c *Chain, line string, first bool) {
	r := &Rule{Line: p.line, Text: line, Target: Target{Kind: Ends, Name: unread}}
	at := len(c.Rules)
	if first {
		at = 0
	}
	p.insert(c, at, r)
}

func isNumber(s string) bool { _, err := strconv.Atoi(s); return err == nil }
