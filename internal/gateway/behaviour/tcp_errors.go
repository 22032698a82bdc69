package behaviour

func tcpErrors() []Case {
	return nil
}
