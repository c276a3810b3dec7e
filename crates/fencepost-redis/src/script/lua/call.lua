
return requests[ARGV[1]]()
