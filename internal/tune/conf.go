package tune

import "strings"

// confHeader begins every file that natkit writes under /etc.
const confHeader = "# Written by natkit tune --persist; `natkit tune undo` takes its lines out again.\n"

// ConfGet is the value of target in the text of its kind's file; empty where it
// is absent. As for the programs that read these files, the last one counts.
func ConfGet(k Kind, text, target string) string {
	value := ""
	for _, line := range strings.Split(text, "\n") {
		if v, ok := confLine(k, line, target); ok {
			value = v
		}
	}
	return value
}

// ConfSet returns the text with target set to value, or taken out where value is
// empty. Everything else in the file stays as it was; a file in which nothing
// but natkit's heading is left becomes empty, which means: delete it.
func ConfSet(k Kind, text, target, value string) string {
	if text == "" {
		text = confHeader
	}
	var out []string
	written := value == ""
	for _, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if _, ok := confLine(k, line, target); !ok {
			out = append(out, line)
			continue
		}
		replacement := confReplace(k, line, target, value, written)
		written = true
		if replacement != "" {
			out = append(out, replacement)
		}
	}
	if !written {
		out = append(out, confNew(k, target, value))
	}
	result := strings.Join(out, "\n") + "\n"
	if result == confHeader {
		return ""
	}
	return result
}

// confLine finds target's value in one line.
func confLine(k Kind, line, target string) (string, bool) {
	line = strings.TrimSpace(line)
	if line == "" || line[0] == '#' || line[0] == ';' {
		return "", false
	}
	switch k {
	case SysctlConf:
		name, value, ok := strings.Cut(strings.TrimPrefix(line, "-"), "=")
		if !ok {
			return "", false
		}
		name, err := SysctlName(strings.TrimSpace(name))
		return NormalValue(value), err == nil && name == target
	case ModulesLoad:
		return line, line == target
	case ModuleOption:
		words, i := optionWord(line, target)
		if i < 0 {
			return "", false
		}
		_, value, _ := strings.Cut(words[i], "=")
		return value, true
	}
	return "", false
}

// optionWord finds the word "option=value" of "module.option" in an options line.
func optionWord(line, target string) (words []string, index int) {
	module, option, _ := strings.Cut(target, ".")
	words = strings.Fields(line)
	if len(words) < 3 || words[0] != "options" || words[1] != module {
		return nil, -1
	}
	for i := len(words) - 1; i >= 2; i-- {
		if strings.HasPrefix(words[i], option+"=") {
			return words, i
		}
	}
	return nil, -1
}

// confReplace is the line with the new value; empty where nothing of it is left.
// Where the value was written before (done), target only disappears.
func confReplace(k Kind, line, target, value string, done bool) string {
	if k != ModuleOption {
		if done {
			return ""
		}
		return confNew(k, target, value)
	}
	_, option, _ := strings.Cut(target, ".")
	var kept []string
	for _, w := range strings.Fields(line) {
		if !strings.HasPrefix(w, option+"=") {
			kept = append(kept, w)
		}
	}
	if !done {
		kept = append(kept, option+"="+value)
	}
	if len(kept) == 2 {
		return ""
	}
	return strings.Join(kept, " ")
}

func confNew(k Kind, target, value string) string {
	switch k {
	case SysctlConf:
		return target + " = " + value
	case ModulesLoad:
		return target
	case ModuleOption:
		module, option, _ := strings.Cut(target, ".")
		return "options " + module + " " + option + "=" + value
	}
	return ""
}
